"""afarm: a wind tunnel for learning from human feedback.

The names here and in `afarm.backend` are the public surface: plugins import from nowhere else. Importing afarm imports
no torch, transformers, openai or anthropic.
"""
