"""Search choices that are declared whole, a file each: type, values, default, who has them, words; `carried` has the records in
which candidates and plans carry them."""
