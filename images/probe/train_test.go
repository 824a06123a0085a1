package main

import (
	"bytes"
	"context"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Runs one attempt of three ranks. Returns the output and the error of each.
func attempt(t *testing.T, number int) (printed [3]string, failed [3]error) {
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(free.Addr().String())
	free.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	done := make(chan struct{})
	for rank := range 3 {
		go func() {
			variables := map[string]string{"MASTER_ADDR": "localhost", "MASTER_PORT": port, "RANK": strconv.Itoa(rank),
				"WORLD_SIZE": "3", "STAGECOACH_ATTEMPT": strconv.Itoa(number), "FAIL_ONCE": "1"}
			job, err := fromEnvironment(func(name string) string { return variables[name] })
			var out bytes.Buffer
			if err == nil {
				err = job.train(ctx, &out)
			}
			printed[rank], failed[rank] = out.String(), err
			done <- struct{}{}
		}()
	}
	for range 3 {
		<-done
	}
	return printed, failed
}

func TestTheFirstAttemptFailsEverywhere(t *testing.T) {
	printed, failed := attempt(t, 1)
	for rank := range 3 {
		if strings.Count(printed[rank], "\n") != 1 || failed[rank] == nil {
			t.Errorf("rank %d printed %q and ended with %v", rank, printed[rank], failed[rank])
		}
	}
	if !strings.Contains(failed[1].Error(), "FAIL_ONCE") {
		t.Errorf("rank 1 ended with %v", failed[1])
	}
}

func TestTheSecondAttemptSumsOverAllRanks(t *testing.T) {
	printed, failed := attempt(t, 2)
	for rank := range 3 {
		if !strings.HasSuffix(printed[rank], ": round 3 sums to 18\n") || failed[rank] != nil {
			t.Errorf("rank %d printed %q and ended with %v", rank, printed[rank], failed[rank])
		}
	}
}

func TestWhatIsMissingIsNamed(t *testing.T) {
	_, err := fromEnvironment(func(string) string { return "" })
	if err == nil || !strings.Contains(err.Error(), "RANK") || !strings.Contains(err.Error(), "WORLD_SIZE") {
		t.Error(err)
	}
}
