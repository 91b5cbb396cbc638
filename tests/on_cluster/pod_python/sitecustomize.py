"""Loaded by every Python in a pod on the host's network, where the host name is the node's: ZenML looks its pod up by it."""

import os
import socket

if "POD_NAME" in os.environ:
    socket.gethostname = lambda: os.environ["POD_NAME"]
