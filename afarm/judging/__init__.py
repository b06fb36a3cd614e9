"""The metered way from a pair to a label: prompts, dispatch, budget and ledger."""
