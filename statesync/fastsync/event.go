package fastsync

// event is something that another goroutine reports to the loop of a join. The loop calls handle;
// only there, and in what it calls, may the loop's fields be used. The kinds:
//
//	peerUp, peerStatus, peerDown   of Peers               join.go
//	answered                       of a call              request.go
//	checked                        of a worker            request.go
//	chosen                         of a search            round.go
//	looked                         of a comparison        look.go
type event interface{ handle(j *joiner) }
