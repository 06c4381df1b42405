package main

import (
	"errors"
	"fmt"
	"net/url"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
)

// startPatience is the time limit for a member to find the others; it is generous, for a busy
// machine.
const startPatience = 3 * time.Minute

type member struct{ etcd *embed.Etcd }

// startMember starts a member, and waits until the cluster has a leader.
func startMember(r begin) (*member, error) {
	client, err := url.Parse(r.Client)
	if err != nil {
		return nil, err
	}
	peer, err := url.Parse(r.Peer)
	if err != nil {
		return nil, err
	}
	c := embed.NewConfig()
	c.Name, c.Dir, c.InitialCluster, c.InitialClusterToken = r.Name, r.Dir, r.Cluster, "starling-bench"
	c.ListenClientUrls, c.AdvertiseClientUrls = []url.URL{*client}, []url.URL{*client}
	c.ListenPeerUrls, c.AdvertisePeerUrls = []url.URL{*peer}, []url.URL{*peer}
	c.LogLevel = "error"
	c.LogOutputs = []string{"stderr"}
	e, err := embed.StartEtcd(c)
	if err != nil {
		return nil, err
	}
	timer := time.NewTimer(startPatience)
	defer timer.Stop()
	select {
	case <-e.Server.ReadyNotify():
		return &member{e}, nil
	case err := <-e.Err():
		err = fmt.Errorf("%s: %w", r.Name, err)
		e.Close()
		return nil, err
	case <-timer.C:
		e.Close()
		return nil, errors.New("the member found no leader")
	}
}

// Close implements child.Worker.
func (m *member) Close() error {
	m.etcd.Close()
	return nil
}
