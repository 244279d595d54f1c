-- Gives columns, indexes and values the words that the code and the documentation use.

ALTER TABLE queue RENAME COLUMN wants TO requirements;
ALTER TABLE failures RENAME COLUMN words TO message;
-- The position in the order in which pools are filled. NULL if the pool is no longer configured.
ALTER TABLE pools RENAME COLUMN place TO fill_order;
-- Of a bot that is or was in the queue: its arrival, until when it waits, and how often it was put back.
ALTER TABLE bots RENAME COLUMN line_arrival TO queue_arrival;
ALTER TABLE bots RENAME COLUMN line_until TO queue_until;
ALTER TABLE bots RENAME COLUMN line_returns TO queue_returns;
-- The last journal row that a replica has read.
ALTER TABLE replicas RENAME COLUMN followed TO journal_position;

-- A deployment in the state `retry` waits for its next start until `lease_until`.
UPDATE deployments SET state = 'retry' WHERE state = 'again';
DROP INDEX deployments_again;
CREATE INDEX deployments_to_retry ON deployments (pool, lease_until) WHERE state = 'retry';
DROP INDEX deployments_for_nobody;
CREATE INDEX deployments_without_bot ON deployments (pool, arrival) WHERE state = 'waiting' AND bot_id IS NULL;
