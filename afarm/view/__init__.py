"""A local page over output directories: runs as they go, outputs, votes, artifacts and costs.

`serve` is the web server, `export` writes the same pages as files. Starlette and uvicorn are in the extra `view`.
"""
