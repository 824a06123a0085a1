module stagecoach.dev/probe

go 1.24
