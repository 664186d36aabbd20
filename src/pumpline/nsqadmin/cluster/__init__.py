"""The cluster as nsqadmin asks it: who is there, what they say, and what they are told."""
