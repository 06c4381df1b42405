//go:build race

package avlstar

// underRace says that the race detector is on, which makes everything several times slower.
const underRace = true
