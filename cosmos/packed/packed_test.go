package packed_test

import (
	"bytes"
	"fmt"
	"runtime"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/cosmos/iavlsync"
	"github.com/starling-kv/starling/cosmos/packed"
	"github.com/starling-kv/starling/internal/seeds"
)

// whole returns an answer with a chunk of about n bytes: of balances, or of random bytes.
func whole(t testing.TB, n int, random bool) []byte {
	rnd := seeds.Rand(t)
	b := []byte{byte(iavlsync.AnswerWhole)}
	for len(b) < n {
		if random {
			b = append(b, byte(rnd.Uint32()))
			continue
		}
		b = fmt.Appendf(append(b, byte(rnd.Uint32()), byte(rnd.Uint32())), "/balance/uatom%d", rnd.Uint32()>>16)
	}
	return b
}

// A compressed answer is shorter by a tenth, and unpacks to the same chunk. Others stay as they
// are.
func TestPack(t *testing.T) {
	p, u := packed.NewPacker(), packed.NewUnpacker()
	for _, n := range []int{100, 1000, 70_000, 1 << 20, iavlsync.MaxAnswerBytes - 100} {
		answer := whole(t, n, false)
		b := p.Pack(answer)
		require.Equal(t, byte(packed.Kind), b[0])
		require.LessOrEqual(t, len(b), len(answer)*9/10+1)
		kind, chunk, err := u.Split(b)
		require.NoError(t, err)
		require.Equal(t, iavlsync.AnswerWhole, kind)
		require.True(t, bytes.Equal(answer[1:], chunk))
		_, _, err = iavlsync.SplitAnswer(b)
		require.ErrorIs(t, err, iavlsync.ErrInvalidChunk, "a receiver that did not ask for it")

		answer = whole(t, n, true)
		require.True(t, bytes.Equal(answer, p.Pack(answer)))
		kind, chunk, err = u.Split(answer)
		require.NoError(t, err)
		require.Equal(t, iavlsync.AnswerWhole, kind)
		require.True(t, bytes.Equal(answer[1:], chunk))
	}
	for _, answer := range [][]byte{{}, {byte(iavlsync.AnswerWhole)}, append([]byte{byte(iavlsync.AnswerPart)}, make([]byte, 1000)...), make([]byte, 1<<20)} {
		require.Equal(t, answer, p.Pack(answer))
	}
}

// frame returns a compressed answer, of whatever is compressed.
func frame(t testing.TB, data []byte, options ...zstd.EOption) []byte {
	e, err := zstd.NewWriter(nil, options...)
	require.NoError(t, err)
	return e.EncodeAll(data, []byte{packed.Kind})
}

// invalid returns compressed answers that no honest server sends.
func invalid(t testing.TB) map[string][]byte {
	good := frame(t, whole(t, 5000, false)[1:], zstd.WithSingleSegment(true))
	// claims returns the beginning of a frame of n bytes, up to its blocks (RFC 8878, section
	// 3.1.1).
	claims := func(n int) []byte {
		return []byte{packed.Kind, 0x28, 0xb5, 0x2f, 0xfd, 0xa0, byte(n), byte(n >> 8), byte(n >> 16), byte(n >> 24)}
	}
	const zeros = 128 << 10 // the longest block
	run := func(last byte) []byte { return []byte{2 | last | zeros<<3&0xff, zeros >> 5 & 0xff, zeros >> 13, 0} }
	var stream bytes.Buffer
	w, err := zstd.NewWriter(&stream)
	require.NoError(t, err)
	_, err = w.Write(make([]byte, 1<<20))
	require.NoError(t, err)
	require.NoError(t, w.Close())
	return map[string][]byte{
		"nothing":                      {packed.Kind},
		"garbage":                      append([]byte{packed.Kind}, "this is no frame of zstd at all"...),
		"too long a chunk":             append(claims(iavlsync.MaxAnswerBytes+1), make([]byte, 1<<17)...),
		"a bomb":                       frame(t, make([]byte, iavlsync.MaxAnswerBytes)),
		"a bomb with a short length":   append(claims(zeros), bytes.Repeat(run(0), 1000)...),
		"a bomb with no length":        append([]byte{packed.Kind}, stream.Bytes()...),
		"a length that does not come":  append(claims(zeros+1), append(bytes.Repeat([]byte{0, 0, 0}, 1000), run(1)...)...),
		"a length and nothing else":    claims(1 << 20),
		"truncated":                    good[:len(good)-1],
		"truncated in the middle":      good[:len(good)/2],
		"a skippable frame":            append([]byte{packed.Kind, 0x50, 0x2a, 0x4d, 0x18, 4, 0, 0, 0, 1, 2, 3, 4}, good[1:]...),
		"two frames":                   append(bytes.Clone(good), good[1:]...),
		"a skippable frame at the end": append(bytes.Clone(good), 0x50, 0x2a, 0x4d, 0x18, 0, 0, 0, 0),
		"an empty frame at the end":    append(bytes.Clone(good), frame(t, nil)[1:]...),
		"bytes at the end":             append(bytes.Clone(good), 0),
		"longer than what it contains": frame(t, []byte("short")),
	}
}

// Each is refused, and costs no more memory than its length allows.
func TestInvalid(t *testing.T) {
	u := packed.NewUnpacker()
	long := whole(t, 1+iavlsync.MaxAnswerBytes, false)[1:][:iavlsync.MaxAnswerBytes]
	_, chunk, err := u.Split(frame(t, long))
	require.NoError(t, err)
	require.Len(t, chunk, iavlsync.MaxAnswerBytes, "the longest")
	for name, b := range invalid(t) {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, _, err := u.Split(b)
		runtime.ReadMemStats(&after)
		require.ErrorIs(t, err, iavlsync.ErrInvalidChunk, name)
		const ofDecoder = 1 << 20
		require.LessOrEqual(t, after.TotalAlloc-before.TotalAlloc, uint64(256*len(b)+ofDecoder), name)
	}
}

// FuzzSplit compares the result with that of a decoder without limits.
func FuzzSplit(f *testing.F) {
	for _, b := range invalid(f) {
		if len(b) < 1<<13 {
			f.Add(b[1:])
		}
	}
	p, u := packed.NewPacker(), packed.NewUnpacker()
	f.Add(p.Pack(whole(f, 3000, false))[1:])
	f.Fuzz(func(t *testing.T, b []byte) {
		answer := append([]byte{byte(iavlsync.AnswerWhole)}, b...)
		_, same, err := u.Split(p.Pack(answer))
		require.NoError(t, err)
		require.True(t, bytes.Equal(b, same))

		kind, chunk, err := u.Split(append([]byte{packed.Kind}, b...))
		if err != nil {
			require.ErrorIs(t, err, iavlsync.ErrInvalidChunk)
			return
		}
		require.Equal(t, iavlsync.AnswerWhole, kind)
		require.Greater(t, len(chunk), len(b))
		require.LessOrEqual(t, len(chunk), min(iavlsync.MaxAnswerBytes, 256*len(b)))
		d, err := zstd.NewReader(bytes.NewReader(b), zstd.WithDecoderConcurrency(1))
		require.NoError(t, err)
		defer d.Close()
		var want bytes.Buffer
		_, err = want.ReadFrom(d)
		require.NoError(t, err)
		require.True(t, bytes.Equal(want.Bytes(), chunk))
	})
}
