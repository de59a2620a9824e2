-- A row filter may have 8,192 characters; an index holds 2,700 bytes of a row.
ALTER TABLE {config}.permission DROP CONSTRAINT permission_pkey;
CREATE UNIQUE INDEX permission_grant_idx
    ON {config}.permission (principal, domain, entity, actions, md5(row_filter));
-- Nothing else tells replicas which row is meant.
ALTER TABLE {config}.permission REPLICA IDENTITY FULL;
