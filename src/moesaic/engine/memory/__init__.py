"""The memory plan: how much of which memory everything takes, before anything is allocated."""
