-- Created once after all rows: one by one, Message-IDs in random order would touch a page of the index each.
CREATE INDEX alias_of_message ON alias (message_id);
CREATE INDEX alias_of_copy ON alias (copy_id);
CREATE INDEX reply_of_copy ON reply (copy_id);
CREATE INDEX delivery_of_address ON delivery (address_id);
CREATE INDEX mails_of_thread ON thread (thread_id);
