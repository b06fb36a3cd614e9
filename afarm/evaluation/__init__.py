"""Records in, numbers out: matching, metrics, protocols, red flags."""
