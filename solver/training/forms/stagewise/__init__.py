"""Stages that differ in degrees, sharding and places of state."""
