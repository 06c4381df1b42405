package pictures

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/bench/harness"
)

const docs = "../../docs"

// The pictures in docs are those of the runs in docs/runs.
func TestPicturesAreDrawnFromRuns(t *testing.T) {
	out := t.TempDir()
	files, err := Run(Options{Runs: filepath.Join(docs, "runs"), Out: out})
	require.NoError(t, err)
	require.Len(t, files, len(pictures))
	for name := range pictures {
		want, err := os.ReadFile(filepath.Join(out, name))
		require.NoError(t, err)
		got, err := os.ReadFile(filepath.Join(docs, name))
		require.NoError(t, err)
		require.True(t, bytes.Equal(want, got), "docs/%s is not what `starling-bench draw` draws: run `make diagrams`", name)
	}
}

// count returns how often an element occurs in a picture, which must be XML without NaN.
func count(t *testing.T, svg []byte, element string) (n int) {
	t.Helper()
	require.NotContains(t, string(svg), "NaN")
	for decoder := xml.NewDecoder(bytes.NewReader(svg)); ; {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			return n
		}
		require.NoError(t, err)
		if e, ok := token.(xml.StartElement); ok && e.Name.Local == element {
			n++
		}
	}
}

func TestDrawTimeline(t *testing.T) {
	cells := [][]string{{"mean of a put, ms", "1 validator", "4 validators, <1 ms apart"}}
	for _, step := range steps {
		cells = append(cells, []string{step, "1,001", "2.50"})
	}
	cells[1][1] = "-0.03" // a mean may be negative: it has no segment
	cells = append(cells, []string{"put", "7,007", "20.0"})
	var output bytes.Buffer
	output.WriteString("text\n\n")
	harness.PrintAligned(&output, cells)
	output.WriteString("\nput  another  one\n")
	text := output.String()

	svg, err := drawTimeline(map[string]string{"latency.txt": text})
	require.NoError(t, err)
	require.Equal(t, 3*len(steps)-1, count(t, svg, "rect"), "the legend, and two bars")
	require.Contains(t, string(svg), "4 validators, &lt;1 ms apart: 20.0 ms")
	require.Contains(t, string(svg), "1 validator: 7,007 ms")

	for damage, says := range map[string]string{
		"mean of a put": `latency.txt: there is no table "mean of a put, ms"`,
		"decide":        `latency.txt: table "mean of a put, ms" has no "decide" of "1 validator"`,
		"7,007":         `has no "put" of "1 validator"`,
		"-0.03":         `has no "accept" of "1 validator"`,
	} {
		_, err := drawTimeline(map[string]string{"latency.txt": strings.Replace(text, damage, strings.Repeat(" ", len(damage)), 1)})
		require.ErrorContains(t, err, says, damage)
	}
}

func TestDrawBars(t *testing.T) {
	var output bytes.Buffer
	harness.PrintAligned(&output, [][]string{
		{million, "starling", "paged", "memiavl", "sdk-iavl"}, {"join, s", "0.594", "0.729", "1,002.096", "50.951"}, {"×", "1", "1.23", "3.53", "85.8"},
	})
	text := output.String()
	p := joins()
	d := &drawing{}
	require.NoError(t, p.draw(d, text))
	svg := d.svg("a & b", barClasses)
	require.Equal(t, len(p.bars), count(t, svg, "rect"))
	require.Contains(t, string(svg), "Cosmos SDK restores, without a network: 50.951 s, 85.8×")

	// In the second table, a figure is below no column.
	for says, damaged := range map[string]string{
		`table "1,000,000 keys" has no "join, s" of "sdk-iavl"`:        strings.ReplaceAll(text, "sdk-iavl", " another"),
		`has no "join, s" of "paged"`:                                  strings.Replace(text, "0.729  ", "  0.729", 1),
		`has no "×" of "sdk-iavl"`:                                     strings.Replace(text, "85.8", "", 1),
		`"join, s" of "sdk-iavl": strconv.ParseFloat: parsing "fifty"`: strings.Replace(text, "50.951", " fifty", 1),
		"the bars have no length":                                      strings.NewReplacer("0.594", "0.000", "0.729", "0.000", "1,002.096", "    0.000", "50.951", " 0.000").Replace(text),
	} {
		require.ErrorContains(t, p.draw(&drawing{}, damaged), says)
	}
}
