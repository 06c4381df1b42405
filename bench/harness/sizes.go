package harness

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Sizes adds a list of sizes in bytes, such as "64KiB,1MiB". The list is sorted and has each size
// once.
func (f *Flags) Sizes(p *[]int, name string, value []int, low, high int, usage string) {
	*p = value
	f.Var((*sizes)(p), name, usage)
	f.Also(func() error {
		for _, n := range *p {
			if n < low || n > high {
				return fmt.Errorf("--%s has %s, each must be from %s to %s", name, SizeText(n), SizeText(low), SizeText(high))
			}
		}
		return nil
	})
}

// sizes is a flag value for a list of sizes.
type sizes []int

func (s *sizes) Type() string   { return "sizes" }
func (s *sizes) String() string { return SizesText(*s) }

// Set parses a list such as "64KiB,1MiB": bytes, with or without a unit.
func (s *sizes) Set(text string) error {
	var all []int
	for word := range strings.SplitSeq(text, ",") {
		number, unit := word, 1
		for _, u := range units {
			if n, is := strings.CutSuffix(word, u.name); is {
				number, unit = n, u.bytes
				break
			}
		}
		n, err := strconv.Atoi(number)
		if err != nil || n < 1 || n > math.MaxInt/unit {
			return fmt.Errorf("%q is not a size such as 65536, 64KiB or 1MiB", word)
		}
		all = append(all, n*unit)
	}
	slices.Sort(all)
	*s = slices.Compact(all)
	return nil
}

var units = []struct {
	name  string
	bytes int
}{{"MiB", 1 << 20}, {"KiB", 1 << 10}, {"B", 1}}

// SizeText formats a size as Sizes reads it.
func SizeText(bytes int) string {
	for _, u := range units {
		if bytes%u.bytes == 0 {
			return fmt.Sprintf("%d%s", bytes/u.bytes, u.name)
		}
	}
	return fmt.Sprint(bytes)
}

// SizesText formats a list as Sizes reads it.
func SizesText(sizes []int) string {
	texts := make([]string, len(sizes))
	for i, s := range sizes {
		texts[i] = SizeText(s)
	}
	return strings.Join(texts, ",")
}
