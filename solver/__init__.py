"""The second floor: which choice is best, with a proof. What a choice costs is in `costmodels`, who asks is in `app`."""
