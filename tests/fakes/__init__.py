"""What tests put in the place of other people's services: HTTP servers on loopback that answer as a test says."""
