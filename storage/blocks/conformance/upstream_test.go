package db

import (
	"testing"

	"github.com/starling-kv/starling/internal/upstream"
)

// TestUpstream runs the tests of cometbft-db's backends over databases of a zone (suite_test.go).
func TestUpstream(t *testing.T) {
	upstream.Run(t, upstream.Suite{
		Module:  "github.com/cometbft/cometbft-db",
		Files:   []string{"backend_test.go", "db_test.go", "util_test.go", "prefixdb_test.go", "common_test.go", "test_helpers.go"},
		Package: "db",
		Replace: map[string]string{
			"NewMemDB()": "newDB(t)",
		},
		Drop: map[string]string{
			"init":                       "registers a backend of cometbft-db",
			"TestGoLevelDBBackend":       "tests a backend of cometbft-db",
			"benchmarkRangeScans":        "not a test",
			"benchmarkRandomReadsWrites": "not a test",
		},
	})
}
