// Package hexruns writes the bytes of test vectors as hex, with repetitions abbreviated.
//
//	00ff 61*1048576        00 ff, then "a" 1,048,576 times
package hexruns

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
)

// Encode returns b in hex with repetitions abbreviated: words separated by spaces, each hex or
// hex*N, which stands for the bytes repeated N times.
func Encode(b []byte) string {
	const longestUnit, worthIt = 32, 128
	var words []string
	plain := 0 // start of the bytes that are not in a word yet
	flush := func(end int) {
		if plain < end {
			words = append(words, hex.EncodeToString(b[plain:end]))
		}
	}
	for i := 0; i < len(b); {
		unit, times := 0, 0
		for n := 1; n <= longestUnit && unit == 0; n++ {
			same := 0
			for i+n+same < len(b) && b[i+same] == b[i+n+same] {
				same++
			}
			if same >= worthIt {
				unit, times = n, 1+same/n
			}
		}
		if unit == 0 {
			i++
			continue
		}
		flush(i)
		words = append(words, fmt.Sprintf("%x*%d", b[i:i+unit], times))
		i += unit * times
		plain = i
	}
	flush(len(b))
	return strings.Join(words, " ")
}

// Decode is the inverse of Encode. It does not limit the length of the result, so it is for trusted
// vectors only.
func Decode(text string) ([]byte, error) {
	b := []byte{}
	for word := range strings.FieldsSeq(text) {
		unit, times, repeated := strings.Cut(word, "*")
		raw, err := hex.DecodeString(unit)
		if err != nil {
			return nil, fmt.Errorf("word %q: %w", word, err)
		}
		n := 1
		if repeated {
			if n, err = strconv.Atoi(times); err != nil || n < 0 {
				return nil, fmt.Errorf("word %q: the repetition count is not a number of 0 or more", word)
			}
		}
		b = append(b, bytes.Repeat(raw, n)...)
	}
	return b, nil
}
