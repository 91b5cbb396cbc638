"""Questions for mail that has none: a language model writes them from batches of mails, and checks decide which are kept.

The model is believed nothing: a question is kept when the mails that it cites hold its answer and search finds them. Every
reply is kept in a file as it arrives, so that nothing is paid for twice; the checks run anew over what is kept.
"""
