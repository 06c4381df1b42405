package cli

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/tx"
)

// Every code has a remedy, in the order of the codes, and every exit status has a row.
func TestErrorsHaveRemedies(t *testing.T) {
	var known []tx.Code
	for code := tx.CodeMalformed; code < 100; code++ {
		if !strings.HasPrefix(code.String(), "code ") {
			known = append(known, code)
		}
	}
	require.Len(t, remedies, len(known))
	for i, code := range known {
		require.Equal(t, code, remedies[i].code)
		require.NotEmpty(t, remedies[i].remedy)
	}
	for i, s := range exitStatuses {
		require.Equal(t, i, s.status)
	}
}
