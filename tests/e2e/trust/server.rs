//! What strangers and large requests cost the servers.
