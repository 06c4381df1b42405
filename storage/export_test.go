package storage

// LeafMerger and Quiet are for tests that read a database without a zone.
var (
	LeafMerger = leafMerger
	Quiet      = quiet{}
)
