-- The memory that a slot used when its agent last polled. Apart from the slots, because it changes without placement.
CREATE TABLE slot_memory (
    slot        TEXT PRIMARY KEY,
    -- A slot that is made again under the same name has another incarnation, and so no figure.
    incarnation UUID NOT NULL,
    bytes       BIGINT NOT NULL,
    measured_at TIMESTAMPTZ NOT NULL
) WITH (fillfactor = 50);
