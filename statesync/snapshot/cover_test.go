package snapshot

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/statesync"
	"github.com/starling-kv/starling/statesync/scheduler"
)

func spans(edges ...uint32) (list []scheduler.Span) {
	for i := 0; i < len(edges); i += 2 {
		list = append(list, scheduler.Span{From: edges[i], To: edges[i+1]})
	}
	return list
}

// Missing chunks are found, even if peers lie about the number of chunks.
func TestIncomplete(t *testing.T) {
	part := func(chunks uint32, edges ...uint32) statesync.Part {
		return statesync.Part{Height: 10, Chunks: chunks, Spans: spans(edges...)}
	}
	require.NoError(t, incomplete(10, nil))
	require.NoError(t, incomplete(10, []statesync.Part{part(100, 0, 50), part(100, 40, 100)}))
	require.NoError(t, incomplete(10, []statesync.Part{part(100, 0, 50), part(100, 40, 100), part(1<<31, 0, 1)}), "the false claim is isolated")
	err := incomplete(10, []statesync.Part{part(100, 0, 25), part(100, 50, 60, 61, 100), part(1<<31, 0, 100)})
	require.ErrorIs(t, err, ErrIncomplete)
	require.ErrorContains(t, err, "height 10: no connected peer has chunks 25 to 49, 60 of 100")
	require.Equal(t, "chunk 7", ChunkNames(spans(7, 8)))
	require.Equal(t, "chunks 0, 2, 4, 6 to 8, 5 more", ChunkNames(spans(0, 1, 2, 3, 4, 5, 6, 9, 10, 12, 20, 23)))
}
