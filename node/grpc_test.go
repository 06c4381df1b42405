package node

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/cometbft/cometbft/crypto/ed25519"
	"github.com/cometbft/cometbft/libs/log"
	cmtproto "github.com/cometbft/cometbft/proto/tendermint/types"
	"github.com/cometbft/cometbft/types"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	reflection "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	"github.com/starling-kv/starling/api"
	"github.com/starling-kv/starling/app"
	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/node/home"
	"github.com/starling-kv/starling/node/internal/nodetest"
	"github.com/starling-kv/starling/tx"
)

// certify writes a certificate for 127.0.0.1, and returns the pool that trusts it.
func certify(t *testing.T, certFile, keyFile string) *x509.CertPool {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	nodetest.WriteFile(t, certFile, string(certificate))
	nodetest.WriteFile(t, keyFile, string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})))
	pool := x509.NewCertPool()
	require.True(t, pool.AppendCertsFromPEM(certificate))
	return pool
}

func TestGRPCWithoutItsCertificate(t *testing.T) {
	folder, _ := nodetest.Home(t, nil)
	conf := nodetest.Load(t, folder)
	conf.App.GRPC.ListenAddress = "127.0.0.1:0"
	conf.CometBFT.RPC.TLSCertFile, conf.CometBFT.RPC.TLSKeyFile = "absent.pem", "key.pem"
	_, err := New(t.Context(), conf, log.NewNopLogger())
	require.ErrorIs(t, err, config.ErrInvalid)
	require.ErrorContains(t, err, "rpc.tls_cert_file")
	require.ErrorContains(t, err, "absent.pem")
}

// TestGRPC makes every call of the gRPC endpoint, over TLS, as a program in another language would.
func TestGRPC(t *testing.T) {
	admin := ed25519.GenPrivKeyFromSecret([]byte("admin"))
	folder, _ := nodetest.Home(t, func(o *home.InitOptions) {
		account := fmt.Sprintf("%x", admin.PubKey().Bytes())
		o.App.Admins, o.App.Grants = []string{account}, []app.GenesisGrant{{Grantee: account, Prefix: "fruit/"}}
	})
	pool := certify(t, filepath.Join(folder, "config", "cert.pem"), filepath.Join(folder, "config", "key.pem"))
	conf := nodetest.Load(t, folder)
	conf.App.State.KeepRecent = 100_000 // the test asks for an older height
	conf.App.GRPC.ListenAddress = "127.0.0.1:0"
	conf.CometBFT.RPC.TLSCertFile, conf.CometBFT.RPC.TLSKeyFile = "cert.pem", "key.pem"
	logs := new(nodetest.LogBuffer)
	n, err := New(t.Context(), conf, logs.Logger(t))
	require.NoError(t, err)
	defer func() { require.NoError(t, n.Stop()) }()
	require.NoError(t, n.Start(t.Context()))
	require.True(t, logs.Has("Serving gRPC"))

	conn, err := grpc.NewClient(n.grpc.Addr(), grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12})))
	require.NoError(t, err)
	defer conn.Close()
	client := api.NewNodeClient(conn)
	ctx := t.Context()

	about, err := client.Status(ctx, &api.StatusRequest{})
	require.NoError(t, err)
	require.Equal(t, "test-chain", about.GetChainId())
	require.Equal(t, n.ID(), about.GetNodeId())

	// A batch: three signed transactions in the order of their nonces, one twice, and one that the
	// application refuses.
	key := func(i uint64) []byte { return fmt.Append(nil, "fruit/", i) }
	sign := func(nonce uint64, key []byte, value string) []byte {
		raw, err := tx.Sign(admin, "test-chain", &tx.Body{Nonce: nonce, Operations: []tx.Operation{tx.NewPut(key, []byte(value))}})
		require.NoError(t, err)
		return raw
	}
	const value = "ripe"
	batch := [][]byte{sign(0, key(0), value), sign(1, key(1), value), sign(2, key(2), value), sign(2, key(2), value), sign(3, []byte("elsewhere"), value)}
	const wait = 60_000 // milliseconds
	submitted, err := client.Submit(ctx, &api.SubmitRequest{Transactions: batch, WaitMs: wait})
	require.NoError(t, err)
	results := submitted.GetResults()
	require.Len(t, results, len(batch))
	for i, r := range results {
		hash := types.Tx(batch[i]).Hash()
		require.Equal(t, hash, r.GetHash())
		switch i {
		case 3:
			require.Contains(t, r.GetError(), "already exists in cache")
		case 4:
			require.Equal(t, uint32(tx.CodeUnauthorized), r.GetCode(), r.GetLog())
			require.Zero(t, r.GetHeight())
		default:
			require.Positive(t, r.GetHeight())
			require.Zero(t, r.GetCode(), r.GetLog())
			decoded, err := tx.DecodeResult(r.GetData())
			require.NoError(t, err)
			require.Len(t, decoded.Results, 1)
		}
	}
	height := results[2].GetHeight()
	again, err := client.GetTransaction(ctx, &api.GetTransactionRequest{Hash: results[0].GetHash()})
	require.NoError(t, err)
	require.Equal(t, results[0].GetHeight(), again.GetResult().GetHeight())
	_, err = client.GetTransaction(ctx, &api.GetTransactionRequest{Hash: make([]byte, 32), WaitMs: 1})
	require.Equal(t, codes.NotFound, status.Code(err))

	// Reads with proofs, against the app hash of the next header.
	var header *api.GetHeaderResponse
	nodetest.Until(t, "the next header", func() bool {
		header, err = client.GetHeader(ctx, &api.GetHeaderRequest{Height: height + 1})
		return err == nil
	})
	var signed cmtproto.SignedHeader
	require.NoError(t, signed.Unmarshal(header.GetSignedHeader()))
	require.Equal(t, height+1, signed.Header.Height)
	got, err := client.Get(ctx, &api.GetRequest{Key: key(2), Height: height, Prove: true})
	require.NoError(t, err)
	require.True(t, got.GetFound())
	require.Equal(t, value, string(got.GetValue()))
	require.Equal(t, height, got.GetHeight())
	require.Len(t, got.GetProof(), 2)
	require.NoError(t, avlstar.VerifyProof(avlstar.Hash(signed.Header.AppHash), key(2), got.GetValue(),
		avlstar.Proof{State: got.GetProof()[0].GetData(), Map: got.GetProof()[1].GetData()}))
	absent, err := client.Get(ctx, &api.GetRequest{Key: []byte("fruit/none")})
	require.NoError(t, err)
	require.False(t, absent.GetFound())
	page, err := client.GetRange(ctx, &api.GetRangeRequest{Start: []byte("fruit/"), End: []byte("fruit0"), Limit: 2, Reverse: true, KeysOnly: true, Prove: true})
	require.NoError(t, err)
	require.Len(t, page.GetEntries(), 2)
	require.Equal(t, key(2), page.GetEntries()[0].GetKey())
	require.Empty(t, page.GetEntries()[0].GetValue())
	require.Equal(t, uint32(4), page.GetEntries()[0].GetValueBytes())
	require.Equal(t, key(1), page.GetNext())
	require.NotEmpty(t, page.GetProof())
	nonce, err := client.Query(ctx, &api.QueryRequest{Path: app.PathNonce, Data: admin.PubKey().Bytes()})
	require.NoError(t, err)
	require.Equal(t, []byte{0, 0, 0, 0, 0, 0, 0, 3}, nonce.GetValue())
	_, err = client.Get(ctx, &api.GetRequest{Key: key(0), Height: 1 << 60})
	require.Equal(t, codes.OutOfRange, status.Code(err))
	_, err = client.GetHeader(ctx, &api.GetHeaderRequest{Height: 1 << 60})
	require.Equal(t, codes.OutOfRange, status.Code(err))
	validators, err := client.GetValidators(ctx, &api.GetValidatorsRequest{Height: height})
	require.NoError(t, err)
	require.Len(t, validators.GetValidators(), 1)

	// A watch, from the past on.
	watch, err := client.Watch(ctx, &api.WatchRequest{Start: []byte("fruit/"), End: []byte("fruit0"), FromHeight: 1, Previous: true})
	require.NoError(t, err)
	var events []*api.Event
	for receive := 3; len(events) < receive; {
		some, err := watch.Recv()
		require.NoError(t, err)
		if events = append(events, some.GetEvents()...); len(events) == 3 && receive == 3 {
			receive++ // one more, while the watch waits
			one, err := client.Submit(ctx, &api.SubmitRequest{Transactions: [][]byte{sign(3, key(0), "eaten")}})
			require.NoError(t, err)
			require.Zero(t, one.GetResults()[0].GetCode(), one.GetResults()[0].GetLog())
			require.Empty(t, one.GetResults()[0].GetError())
		}
	}
	for i, e := range events[:3] {
		require.Equal(t, key(uint64(i)), e.GetKey())
		require.Empty(t, e.GetPrevious())
	}
	require.Equal(t, "eaten", string(events[3].GetValue()))
	require.Equal(t, value, string(events[3].GetPrevious()))

	// Other tools learn the messages from the server.
	info, err := reflection.NewServerReflectionClient(conn).ServerReflectionInfo(ctx)
	require.NoError(t, err)
	require.NoError(t, info.Send(&reflection.ServerReflectionRequest{
		MessageRequest: &reflection.ServerReflectionRequest_FileContainingSymbol{FileContainingSymbol: "starling.v1.Node"},
	}))
	described, err := info.Recv()
	require.NoError(t, err)
	files := described.GetFileDescriptorResponse().GetFileDescriptorProto()
	require.Len(t, files, 1)
	require.True(t, bytes.Contains(files[0], []byte("GetRangeRequest")))
}
