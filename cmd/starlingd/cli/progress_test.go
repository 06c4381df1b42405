package cli

import (
	"bytes"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestProgressInALog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		for _, unit := range []string{"keys", bytesUnit} {
			p := newProgress(&log, unit, 4<<20, 0)
			p.at(10) // too soon for a line
			<-time.After(10 * time.Second)
			p.at(1 << 20)
			p.end()
		}
		require.Equal(t, "1048576 of 4194304 keys, 104858/s, 30s left\n1.0 MiB of 4.0 MiB, 102 KiB/s, 30s left\n", log.String())
	})
}
