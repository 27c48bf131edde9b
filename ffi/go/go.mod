module qk

go 1.18
