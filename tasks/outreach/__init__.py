"""Outreach: short e-mails to prospects, written from a knowledge graph and improved by the replies that they get."""
