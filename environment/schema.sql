-- The tables of a mail database. The builder creates the indexes when all rows are written.
-- A database is never changed: another build is another file.

CREATE TABLE metadata (
    key TEXT PRIMARY KEY,  -- content_checksum, emails, inboxes
    value TEXT
);

-- The text of each mail, stored once for all its copies (same subject, body and sender).
CREATE TABLE email (
    id INTEGER PRIMARY KEY,
    from_address TEXT NOT NULL,
    from_name TEXT NOT NULL,
    subject TEXT NOT NULL,
    body TEXT NOT NULL
);

-- One row each time a mail was sent. `sent_at` is UTC: YYYY-MM-DD HH:MM:SS.
CREATE TABLE copy (
    id INTEGER PRIMARY KEY,
    email_id INTEGER NOT NULL,
    message_id TEXT NOT NULL,
    sent_at TEXT NOT NULL
);

CREATE TABLE address (
    id INTEGER PRIMARY KEY,
    address TEXT NOT NULL UNIQUE
);

-- Every Message-ID of a copy, its own included.
CREATE TABLE alias (
    message_id TEXT NOT NULL,
    copy_id INTEGER NOT NULL
);

-- Who sent or received which copy. `role` is from, to, cc or bcc: someone who writes to themselves has two rows, a
-- recipient named twice has one, for the first role. `place` is the position in the header field.
CREATE TABLE delivery (
    email_id INTEGER,
    address_id INTEGER,
    copy_id INTEGER,
    role TEXT,
    place INTEGER,
    PRIMARY KEY (email_id, address_id, copy_id, role)
);

-- The Message-IDs that a copy answers (In-Reply-To, References).
CREATE TABLE reply (
    copy_id INTEGER NOT NULL,
    message_id TEXT NOT NULL
);

-- Mails that headers of any inbox connect. `thread_id` is the smallest id among them; mails without a thread are absent.
CREATE TABLE thread (
    email_id INTEGER PRIMARY KEY,
    thread_id INTEGER
);

-- Which mails have a word in which column: no text, positions or lengths. The text is indexed in its normal form
-- (normal_form.py). `sender` holds the sender's name and the part of the address before the @. `inbox` holds one token such
-- as i17 for each sender and recipient, so that the limit to one inbox is part of the full-text query and its cost follows
-- the inbox.
CREATE VIRTUAL TABLE email_fts USING fts5(
    subject, body, sender, inbox, content='', detail=column, columnsize=0, tokenize='porter unicode61'
);

-- Every word in the column `sender`. A search looks there only for these.
CREATE TABLE sender_word (
    stem TEXT PRIMARY KEY
) WITHOUT ROWID;
