-- What lists and status calls need, so that they need not count or search.

-- How many bots of a user have ended, by the status of their end: up to the event in `ended_counts_position`. The keeper
-- `stats` adds the events after it. Apart from the bots, so that an end of a bot costs nothing more.
CREATE TABLE ended_counts (
    user_id UUID NOT NULL,
    status  TEXT NOT NULL,
    count   BIGINT NOT NULL,
    PRIMARY KEY (user_id, status)
) WITH (fillfactor = 50);

-- One row.
CREATE TABLE ended_counts_position (
    last_event BIGINT NOT NULL
) WITH (fillfactor = 50);
-- All events up to there are visible. An end after it counts with its event.
INSERT INTO ended_counts_position (last_event) SELECT last_event FROM stats_position;
INSERT INTO ended_counts (user_id, status, count)
SELECT user_id, status, count(*) FROM bots
 WHERE status IN ('completed', 'failed')
   AND NOT EXISTS (SELECT 1 FROM events
                    WHERE events.bot_id = bots.id
                      AND events.id > (SELECT last_event FROM ended_counts_position)
                      AND events.to_status IN ('completed', 'failed'))
 GROUP BY user_id, status;

-- Bots are listed by their meeting. Neither column ever changes, so updates of a bot leave it alone.
CREATE INDEX bots_by_meeting ON bots (native_meeting_id COLLATE "C", id);

-- Deployments are listed in the order of their arrival.
CREATE INDEX deployments_by_arrival ON deployments (arrival);
