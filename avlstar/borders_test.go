package avlstar

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"
)

// schemeKey returns one of about space keys. Depending on scheme, keys are spread, have one prefix
// of 8 bytes, are decimal, have few prefixes, or have zeros at the end.
func schemeKey(rnd *rand.Rand, scheme, space int) []byte {
	x := rnd.IntN(space)
	switch scheme {
	case 0:
		return binary.BigEndian.AppendUint64(nil, uint64(x)*0x9e3779b97f4a7c15)
	case 1: // one prefix of 8 bytes
		return fmt.Appendf(nil, "samepref%07d", x)
	case 2:
		return fmt.Appendf(nil, "%08d", x)
	case 3: // few prefixes, zeros at the end
		b := binary.BigEndian.AppendUint64(nil, uint64(x%7)<<40)
		return append(b[:1+x%8:1+x%8], fmt.Appendf(nil, "%d", x/7)...)
	default: // trailing zeros
		b := fmt.Appendf(nil, "%05d", x/10)
		return append(b, make([]byte, x%10)...)
	}
}

// borderValue is short, but sometimes about as long as a record that has a page of its own.
func borderValue(rnd *rand.Rand) []byte {
	n := 1 + rnd.IntN(1<<rnd.IntN(7))
	if rnd.IntN(300) == 0 {
		n = 8150 + rnd.IntN(60)
	}
	b := make([]byte, n)
	b[0] = byte(rnd.Uint32())
	b[n-1] = byte(rnd.Uint32())
	return b
}

// borderBlock returns a block of about n changes that is aimed at the borders of subtrees, where
// the work of one goroutine ends and that of another begins.
func borderBlock(t *testing.T, rnd *rand.Rand, v *Version, scheme, space, n int) []Change {
	m := model{}
	var leaves []Leaf
	for l := range mustLeaves(t, v) {
		leaves = append(leaves, Leaf{Key: bytes.Clone(l.Key), Height: l.Height})
	}
	pats := 1 + rnd.IntN(3)
	for range pats {
		k := max(1, n/pats)
		switch p := rnd.IntN(9); {
		case p == 0 || len(leaves) < 20: // random
			del := rnd.Float64()
			for range k {
				key := schemeKey(rnd, scheme, space)
				if rnd.Float64() < del {
					m[string(key)] = nil
				} else {
					m[string(key)] = borderValue(rnd)
				}
			}
		case p == 1: // ascending run behind a leaf
			at := leaves[rnd.IntN(len(leaves))].Key
			for i := range k {
				m[string(at)+string(fmt.Appendf(nil, "\x00%06d", i))] = borderValue(rnd)
			}
		case p == 2: // a range is deleted
			at := rnd.IntN(len(leaves))
			for _, l := range leaves[at:min(len(leaves), at+k)] {
				m[string(l.Key)] = nil
			}
		case p == 3: // least keys at borders are deleted
			h := uint8(1 + rnd.IntN(int(v.top.Height)))
			for i, l := range leaves {
				if (l.Height >= h || i == 0) && k > 0 {
					m[string(l.Key)] = nil
					k--
				}
			}
		case p == 4: // alternately deleted and put at borders
			h := uint8(1 + rnd.IntN(int(v.top.Height)))
			mode := rnd.IntN(4)
			for i, l := range leaves {
				if (l.Height >= h || i == 0) && k > 0 {
					m[string(l.Key)] = nil
					switch mode {
					case 0:
						m[string(l.Key)+"\x00"] = borderValue(rnd)
					case 1:
						if i > 0 {
							m[string(leaves[i-1].Key)+"\x00"] = borderValue(rnd)
						}
					case 2:
						m[string(l.Key)+"\x00"] = borderValue(rnd)
						if i+1 < len(leaves) {
							m[string(leaves[i+1].Key)] = nil
						}
						k--
					case 3:
						m[string(l.Key)] = borderValue(rnd)
					}
					k -= 2
				}
			}
		case p == 5: // ranges between borders are deleted completely
			h := uint8(2 + rnd.IntN(int(v.top.Height)))
			on := false
			for _, l := range leaves {
				if l.Height >= h {
					on = rnd.IntN(3) == 0
				}
				if on && k > 0 {
					m[string(l.Key)] = nil
					k--
				}
			}
		case p == 6: // the same, but one key of each range is left or put again
			h := uint8(2 + rnd.IntN(int(v.top.Height)))
			on := false
			for _, l := range leaves {
				if l.Height >= h {
					on = rnd.IntN(3) == 0
					if on && rnd.IntN(2) == 0 {
						m[string(l.Key)+"\x00x"] = borderValue(rnd)
					}
					if on && rnd.IntN(2) == 0 {
						continue
					}
				}
				if on && k > 0 {
					m[string(l.Key)] = nil
					k--
				}
			}
		case p == 7: // clustered
			for k > 0 {
				at := rnd.IntN(len(leaves))
				c := 1 + rnd.IntN(1<<rnd.IntN(9))
				for j := range c {
					l := leaves[(at+j/2)%len(leaves)]
					if j%2 == 0 {
						m[string(l.Key)] = nil
					} else {
						m[string(l.Key)+string(rune('a'+rnd.IntN(3)))] = borderValue(rnd)
					}
				}
				k -= c
			}
		case p == 8: // about every second key, mostly values
			d := rnd.Float64()
			step := 1 + rnd.IntN(1+2*len(leaves)/k)
			for i := 0; i < len(leaves); i += step {
				if rnd.Float64() < d {
					m[string(leaves[i].Key)] = nil
				} else {
					m[string(leaves[i].Key)] = borderValue(rnd)
				}
			}
		}
	}
	return sortedBlock(m)
}
