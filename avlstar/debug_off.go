//go:build !avlstardebug

package avlstar

// debug enables the checks of debug_on.go: go test -tags avlstardebug.
const debug = false

const poison = 0

func (t *tree) check(*Version) {}
