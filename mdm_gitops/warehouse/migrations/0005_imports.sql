-- Placeholder until the tables of this number are written.
SELECT 1;
