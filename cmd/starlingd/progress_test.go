package main

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
		require.Equal(t, "1048576 of 4194304 keys, 104858/s, 30s left\n1.0 MiB of 4.0 MiB, 102.4 KiB/s, 30s left\n", log.String())
	})
}

func TestByteCount(t *testing.T) {
	for bytes, want := range map[uint64]string{
		0: "0 bytes", 1023: "1023 bytes", 1024: "1.0 KiB", 1 << 20: "1.0 MiB", 3 << 29: "1.5 GiB", 5 << 40: "5.0 TiB", 1 << 60: "1048576.0 TiB",
	} {
		require.Equal(t, want, byteCount(bytes))
	}
}
