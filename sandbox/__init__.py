"""A service that runs untrusted Python: workspaces with files and a REPL, and tests in fresh workspaces."""
