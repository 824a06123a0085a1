#!/bin/sh
# A kubectl that knows three jobs, each with a pod of stage 0: `small`, whose pod runs, `ended` and `pending`.
job() { echo '{"metadata": {"name": "'"$1"'", "uid": "'"$1"'"}, "spec": {"storage": {"path": "jobs/'"$1"'"}}}'; }
pods() {
    echo '{"items": [{"metadata": {"name": "'"$1"'-0-1", "labels": {"stagecoach.dev/stage": "0", "stagecoach.dev/attempt": "1"}},
        "status": {"phase": "'"$2"'"}}]}'
}
case "$*" in
    *"get pipelinejobs.stagecoach.dev small"*) job small ;;
    *"get pipelinejobs.stagecoach.dev ended"*) job ended ;;
    *"get pipelinejobs.stagecoach.dev pending"*) job pending ;;
    *"get pods --selector stagecoach.dev/job-uid=small"*) pods small Running ;;
    *"get pods --selector stagecoach.dev/job-uid=ended"*) pods ended Succeeded ;;
    *"get pods --selector stagecoach.dev/job-uid=pending"*) pods pending Pending ;;
    *"logs small-0-1"*) echo 'the live page, after this: http://127.0.0.1:9091/token/' ;;
    *"port-forward --address=127.0.0.1 small-0-1 :9091") echo 'Forwarding from 127.0.0.1:4567 -> 9091' ;;
    *"exec small-0-1"*) echo "$@" ;;
    *) echo "unexpected: $*" >&2; exit 1 ;;
esac
