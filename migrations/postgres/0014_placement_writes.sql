-- Only SQLite needs this step.
SELECT 1;
