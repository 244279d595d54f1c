-- Only PostgreSQL needs this step.
SELECT 1;
