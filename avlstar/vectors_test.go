package avlstar

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// An independent implementation made the vectors in testdata/vectors. The README.md there explains
// the fields.

// hexBytes is a byte string in lower-case hexadecimal.
type hexBytes []byte

func (h *hexBytes) UnmarshalText(text []byte) (err error) {
	*h, err = hex.DecodeString(string(text))
	return err
}

func (h hexBytes) MarshalText() ([]byte, error) { return []byte(hex.EncodeToString(h)), nil }

type vectorFile struct {
	Format, Name string
	B            uint64
	Genesis      vectorBlock
	Blocks       []vectorBlock
	Cases        []vectorCase
}

type vectorBlock struct {
	Ops            []vectorOp
	Root           hexBytes
	AppHash        hexBytes `json:"app_hash"`
	M              uint32
	Height         uint8
	Bytes          uint64
	ManifestSHA256 hexBytes `json:"manifest_sha256"`
	ChunksSHA256   hexBytes `json:"chunks_sha256"`
	Manifest       hexBytes
	Chunks         []hexBytes
	Proofs         []vectorProof
}

type vectorOp struct {
	Op         string
	Key, Value hexBytes
	Fill       hexBytes
	Count      int
}

type vectorProof struct {
	Key, Value, State, Map hexBytes
}

type vectorCase struct {
	Name, Reason, Kind string
	AppHash            hexBytes `json:"app_hash"`
	Manifest, Chunk    hexBytes
	Index              uint32
}

// loadVectors returns the vector files of a format by name.
func loadVectors(t testing.TB, format string) []vectorFile {
	t.Helper()
	paths, err := filepath.Glob("testdata/vectors/*.json")
	require.NoError(t, err)
	var files []vectorFile
	for _, path := range paths {
		b, err := os.ReadFile(path)
		require.NoError(t, err)
		d := json.NewDecoder(bytes.NewReader(b))
		var f vectorFile
		require.NoError(t, d.Decode(&f), path)
		if f.Format == format {
			files = append(files, f)
		}
	}
	require.NotEmpty(t, files)
	return files
}

// changes returns the final change of each key in a block, in no particular order.
func (b vectorBlock) changes(t testing.TB) []Change {
	t.Helper()
	final := map[string][]byte{}
	for _, op := range b.Ops {
		switch {
		case op.Op == "delete":
			final[string(op.Key)] = nil
		case op.Op == "put" && op.Fill != nil:
			final[string(op.Key)] = bytes.Repeat(op.Fill, op.Count)
		case op.Op == "put":
			final[string(op.Key)] = op.Value
		default:
			t.Fatalf("unknown operation %q", op.Op)
		}
	}
	var changes []Change
	for key, value := range final {
		changes = append(changes, Change{Key: []byte(key), Value: value})
	}
	return changes
}

// eachVector calls fn with every version of every vector file, beginning with genesis.
func eachVector(t *testing.T, fn func(t *testing.T, v *Version, want vectorBlock)) {
	for _, f := range loadVectors(t, "starling-vectors-1") {
		t.Run(f.Name, func(t *testing.T) {
			v, err := Empty(f.B)
			require.NoError(t, err)
			fn(t, v, f.Genesis)
			for _, block := range f.Blocks {
				v, err = v.Apply(block.changes(t))
				require.NoError(t, err)
				fn(t, v, block)
			}
		})
	}
}

func TestVectors(t *testing.T) {
	blocks := 0
	eachVector(t, func(t *testing.T, v *Version, want vectorBlock) {
		blocks++
		requireInvariants(t, v)
		require.Equal(t, Stub{Stat{want.Height, want.Bytes}, Hash(want.Root)}, v.Root())
		require.Equal(t, Hash(want.AppHash), v.AppHash())
		require.Equal(t, want.M, v.NumChunks())

		manifest := v.Manifest().Encode()
		require.Equal(t, [32]byte(want.ManifestSHA256), sha256.Sum256(manifest))
		if want.Manifest != nil {
			require.Equal(t, []byte(want.Manifest), manifest)
		}
		chunks := encodeChunks(t, v)
		require.Equal(t, [32]byte(want.ChunksSHA256), sha256.Sum256(slices.Concat(chunks...)))
		if want.Chunks != nil {
			require.Len(t, chunks, len(want.Chunks))
			for k := range chunks {
				require.Equal(t, []byte(want.Chunks[k]), chunks[k])
			}
		}
		requireRoundTrip(t, v)
	})
	require.Greater(t, blocks, 250)
}

func TestInvalidVectors(t *testing.T) {
	for _, f := range loadVectors(t, "starling-invalid-1") {
		for _, c := range f.Cases {
			t.Run(c.Name, func(t *testing.T) {
				m, err := VerifyManifest(c.Manifest, Hash(c.AppHash))
				if c.Kind == "manifest" {
					require.ErrorIs(t, err, ErrInvalidManifest, c.Reason)
					t.Log(err)
					return
				}
				require.Equal(t, "chunk", c.Kind)
				require.NoError(t, err)
				_, err = m.VerifyChunk(c.Index, c.Chunk)
				require.ErrorIs(t, err, ErrInvalidChunk, c.Reason)
				t.Log(err)
			})
		}
	}
}
