package iavlsync

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMessages(t *testing.T) {
	for _, o := range []Offers{nil, {1}, {5, 9, 1 << 62}} {
		got, err := DecodeOffers(o.Encode())
		require.NoError(t, err)
		require.Equal(t, o, got)
	}
	for _, bad := range []Offers{{0}, {-1}, {2, 2}, {3, 1}, make(Offers, MaxOffers+1)} {
		_, err := DecodeOffers(bad.Encode())
		require.ErrorIs(t, err, ErrInvalidMessage)
	}
	q := ManifestRequest{7, Format512, 2 * ManifestPartBytes}
	got, err := DecodeManifestRequest(q.Encode())
	require.NoError(t, err)
	require.Equal(t, q, got)
	for _, bad := range []ManifestRequest{{0, Format512, 0}, {7, 1, 0}, {7, Format512, 1}, {7, Format512, MaxManifestBytes + ManifestPartBytes}} {
		_, err := DecodeManifestRequest(bad.Encode())
		require.ErrorIs(t, err, ErrInvalidMessage)
	}
	file := FileRequest{Hash{1, 31: 2}, 2 * FilePartBytes}
	same, err := DecodeFileRequest(file.Encode())
	require.NoError(t, err)
	require.Equal(t, file, same)
	for _, bad := range []FileRequest{{Offset: 1}, {Offset: MaxFileBytes + FilePartBytes}} {
		_, err := DecodeFileRequest(bad.Encode())
		require.ErrorIs(t, err, ErrInvalidMessage)
	}
}

func FuzzMessages(f *testing.F) {
	f.Add(Offers{3, 9}.Encode())
	f.Add((&ManifestRequest{7, Format512, 0}).Encode())
	f.Add((&FileRequest{Hash{1}, FilePartBytes}).Encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		if o, err := DecodeOffers(b); err == nil && !bytes.Equal(o.Encode(), b) {
			t.Fatalf("%x is another encoding of %v", b, o)
		}
		if q, err := DecodeManifestRequest(b); err == nil && !bytes.Equal(q.Encode(), b) {
			t.Fatalf("%x is another encoding of %v", b, q)
		}
		if q, err := DecodeFileRequest(b); err == nil && !bytes.Equal(q.Encode(), b) {
			t.Fatalf("%x is another encoding of %v", b, q)
		}
	})
}
