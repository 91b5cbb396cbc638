"""The part of the sandbox that runs inside the isolation: an init process per workspace, and the REPL that it watches.

bubblewrap gives a template process a read-only root, no network, no host processes and no environment. The template has
imported everything already. For each workspace it forks a child that enters namespaces of its own (processes, mounts, network,
IPC) and becomes their init. The init is trusted and talks to the service; the REPL that it forks is not, and has no
capabilities.

In a container there is no template: the init is process 1 of the container, and talks over its standard input and output.

Uses the standard library only, of Python 3.9 or newer: nothing else of the project is visible in here.
"""
