//go:build race

package avlstar

// underRace: the race detector makes everything several times slower.
const underRace = true
