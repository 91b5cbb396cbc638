"""Questions for mail that has none: a language model writes them from batches of mails, and checks decide which are kept.

A question is kept only if the mails that it cites contain its answer and search finds them. Every reply is written to a
file as it arrives, so that none is paid for twice. The checks run again on the stored replies.
"""
