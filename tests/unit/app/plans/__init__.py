"""Tests of plan documents."""
