-- Ports of sandboxes that somebody may see without a key. What was signed for an
-- earlier epoch is good for nothing.
CREATE TABLE previews (
	sandbox TEXT NOT NULL,
	port    INTEGER NOT NULL,
	public  INTEGER NOT NULL,
	epoch   INTEGER NOT NULL,
	PRIMARY KEY (sandbox, port)
) STRICT;

CREATE TRIGGER previews_end AFTER DELETE ON sandboxes
BEGIN DELETE FROM previews WHERE sandbox = OLD.id; END;
