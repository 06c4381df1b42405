//go:build noevm

package program

// Built says whether this build has an engine. Builds with the tag noevm have none.
const Built = false
