"""Run the template process: `python -I -S /sandbox/inside HANDLE`, with the handle of the socket to the service."""

import socket
import sys

if __name__ == "__main__":
    sys.path[0] = "/"  # this folder; the package is found from the root
    from sandbox.inside.template import template

    del sys.path[0]
    template(socket.socket(fileno=int(sys.argv[1])))
